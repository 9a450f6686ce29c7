// Package harness runs checks a few at a time and says how each went, in the words of TAP.
//
// A check fails by returning an error to Must, or by a wrong value to Expect or Equal.
package harness

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"
)

const (
	secondsMax = 30 // one check
	untilMax   = 20 * time.Second
	atOnce     = 6
)

// Check is one thing that a program with the client does to a broker.
type Check struct {
	Name string
	Do   func(ctx context.Context)
}

type failure string

// Must ends the check if there is an error.
func Must(err error) {
	if err != nil {
		panic(failure(err.Error()))
	}
}

// Got is Must for calls that return a value too.
func Got[T any](value T, err error) T {
	Must(err)
	return value
}

// Expect ends the check if something does not hold.
func Expect(holds bool, format string, args ...any) {
	if !holds {
		panic(failure(fmt.Sprintf(format, args...)))
	}
}

// Equal ends the check if two values differ.
func Equal(got, want any) {
	Expect(reflect.DeepEqual(got, want), "got %v, not %v", got, want)
}

// Until polls for something.
func Until(what string, holds func() bool) {
	for deadline := time.Now().Add(untilMax); !holds(); time.Sleep(10 * time.Millisecond) {
		Expect(time.Now().Before(deadline), "never came: %s", what)
	}
}

// Report counts and prints results; it may be used from many goroutines.
type Report struct {
	mu             sync.Mutex
	passed, failed int
}

// Add prints one result; an empty reason is a success.
func (r *Report) Add(name, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reason == "" {
		r.passed++
		fmt.Println("ok", name)
		return
	}
	r.failed++
	reason = strings.Join(strings.Fields(reason), " ")
	fmt.Printf("not ok %s: %.300s\n", name, reason)
}

// Close prints the sum; the exit code of the program.
func (r *Report) Close() int {
	fmt.Printf("%d passed, %d failed\n", r.passed, r.failed)
	if r.failed > 0 {
		return 1
	}
	return 0
}

// Run does first alone, since without it nothing else can pass, then the checks. Whether first passed.
func (r *Report) Run(first Check, checks []Check) bool {
	if !r.one(first) {
		for _, check := range checks {
			r.Add(check.Name, first.Name+" failed")
		}
		return false
	}
	var running sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for _, check := range checks {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			r.one(check)
		})
	}
	running.Wait()
	return true
}

func (r *Report) one(check Check) bool {
	ctx, cancel := context.WithTimeout(context.Background(), secondsMax*time.Second)
	defer cancel()
	done := make(chan string, 1)
	go func() {
		defer func() {
			reason := recover()
			if reason == nil {
				done <- ""
				return
			}
			done <- fmt.Sprint(reason)
		}()
		check.Do(ctx)
	}()
	var reason string
	select {
	case reason = <-done:
	case <-time.After((secondsMax + 5) * time.Second): // it ignores its context
		reason = "hangs"
	}
	r.Add(check.Name, reason)
	return reason == ""
}
