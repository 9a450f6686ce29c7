package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	. "lapse.test/harness"
)

// Those of the package's own tests that talk to a broker and are done in seconds. They are named as
// there; FINDINGS.md says what was left out.
var published = []string{
	"TestPing",
	"TestIssue1034",
	"TestIssue325",
	"TestConsumeTopicRetrieval",
	"TestConsumeTopicRetrieval_Many",
	"TestConsumeRegex",
	"TestIssue337",
	"TestDirectPartitionPurge",
	"TestAddRemovePartitions",
	"TestPauseIssue489",
	"TestPauseIssueOct2023",
	"TestIssue648",
	"TestIssue810",
	"TestIssue865",
	"TestIssueFetchLargerThanBrokerMaxReadBytes",
	"TestPooling",
	"TestGroupSimple",
	"TestHookPollStart",
	"TestLookbackMilli",
	"TestConsumeMaxDecompressBatchBytes",
	"TestGroupETL",
	"TestClient_Produce",
	"TestIssue769",
	"TestClient_ProduceLargeMessages",
	"TestTxnEtl",
}

var ended = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\w+) `)

// runPublished runs the compiled tests of kgo and reports each; one that says nothing has failed.
func runPublished(report *Report, program string) {
	command := exec.Command(program, "-test.v", "-test.timeout=240s", "-test.parallel=8",
		"-test.run=^("+strings.Join(published, "|")+")$")
	command.Env = append(os.Environ(), "KGO_SEEDS="+bootstrap, "KGO_TEST_RF=1", "KGO_LOG_LEVEL=none",
		"KGO_TEST_RECORDS=2000", "KGO_TEST_MAX_TOPIC_PARTS=4")
	command.Stderr = os.Stderr // where a test that took too long leaves the stacks
	output := Got(command.StdoutPipe())
	Must(command.Start())
	said := map[string]string{}
	var last []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if found := ended.FindStringSubmatch(lines.Text()); found != nil {
			said[found[2]] = found[1]
		}
		last = append(last[max(0, len(last)-30):], lines.Text())
	}
	if command.Wait() != nil {
		fmt.Fprintln(os.Stderr, strings.Join(last, "\n"))
	}
	for _, name := range published {
		switch said[name] {
		case "PASS":
			report.Add(name, "")
		case "":
			report.Add(name, "it did not end")
		default:
			report.Add(name, "the client's own test says "+said[name])
		}
	}
}
