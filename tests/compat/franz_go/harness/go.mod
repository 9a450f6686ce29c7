module lapse.test/harness

go 1.26.0
