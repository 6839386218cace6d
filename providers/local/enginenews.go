//go:build linux

package local

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// engineNews turns what an engine prints into news, and keeps what is wanted when
// it fails. It is an io.Writer for one writer at a time.
type engineNews struct {
	b     *templateBuild
	lines lineWriter
	step  int
	text  string
	since time.Time
	last  []string
	fault string // what the engine says about the step that failed
}

// Write takes output.
func (n *engineNews) Write(p []byte) (int, error) {
	n.lines.line = n.line
	n.lines.write(p)
	return len(p), nil
}

// engineStep is the line before a step: "[1/2] STEP 2/3: RUN make".
var engineStep = regexp.MustCompile(`^(?:\[\d+/\d+\] )?STEP (\d+)(?:/(\d+))?: (.*)$`)

// engineFault is the last line of an engine whose step has failed.
var engineFault = regexp.MustCompile(`^Error: (?:building at STEP|error building at STEP) ".*": (.*)$`)

func (n *engineNews) line(text string) {
	if m := engineStep.FindStringSubmatch(text); m != nil {
		n.finish()
		n.step, _ = strconv.Atoi(m[1])
		steps, _ := strconv.Atoi(m[2])
		n.b.steps = make([]buildStep, max(steps, n.step))
		n.text, n.since, n.last = m[3], time.Now(), nil
		n.b.tell(providers.BuildEvent{Kind: providers.BuildStarted, Step: n.step, Text: n.text})
		return
	}
	if strings.HasPrefix(text, "[Warning] one or more build args were not consumed: ["+markArg+"]") {
		return
	}
	if m := engineFault.FindStringSubmatch(text); m != nil {
		n.fault = m[1]
		return
	}
	if n.last = append(n.last, text); len(n.last) > lastLines {
		n.last = n.last[1:]
	}
	n.b.tell(providers.BuildEvent{Kind: providers.BuildOutput, Step: n.step, Text: text})
}

// finish tells that the step that runs is done.
func (n *engineNews) finish() {
	if n.step > 0 {
		n.b.tell(providers.BuildEvent{Kind: providers.BuildDone, Step: n.step, Text: n.text, Took: time.Since(n.since)})
	}
}

// end is called when the engine has ended well.
func (n *engineNews) end() {
	n.lines.flush()
	n.finish()
}

// failed makes the error of an engine that has ended with err.
func (n *engineNews) failed(err error) error {
	n.lines.flush()
	status := n.fault
	if status == "" {
		status = err.Error()
	}
	se := &providers.BuildStepError{Step: n.step, Steps: len(n.b.steps), Text: n.text, Status: status, Last: n.last}
	message := fmt.Sprintf("step %d of %d", se.Step, se.Steps)
	if n.step == 0 {
		se.Text, message = "podman build", "no step was begun"
	}
	return &errdefs.Error{Code: "E7010", Op: opBuild + " " + n.b.m.Name, Message: message, Err: se}
}
