//go:build linux

package local

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// engineNews turns what an engine prints into news, and keeps what is wanted when
// it fails. It is an io.Writer for one writer at a time.
type engineNews struct {
	b      *templateBuild
	engine string
	lines  lineWriter
	now    engineStep // the step that runs, of engines that run one at a time
	fault  string     // what the engine says about the step that failed

	kit map[string]*engineStep // those of BuildKit, by number

	mark          string // a step that this package has added to each stage
	marks, passed int    // how many there are, and were told of
}

// engineStep is a step that was begun.
type engineStep struct {
	number int // zero: none, or what is no step
	of     int // steps there are, of its stage; without a count those so far
	counts bool
	stage  string
	text   string
	since  time.Time
	last   []string
	done   bool
}

// Write takes output.
func (n *engineNews) Write(p []byte) (int, error) {
	n.lines.line = n.line
	n.lines.write(p)
	return len(p), nil
}

var (
	// The line before a step: "[1/2] STEP 2/3: RUN make", "Step 2/3 : RUN make".
	stepBegins = lazily(`^(?:\[(\d+/\d+)\] )?(?:STEP|Step) (\d+)(?:/(\d+))? ?: (.*)$`)
	// The last line of an engine whose step has failed.
	stepFails = lazily(`^(?:Error: )?(?:error )?building at STEP ".*": (.*)$|^(The command '.*' returned a non-zero code: \d+)$`)
	// What a daemon says about its steps.
	daemonSays = lazily(`^ --->|^Removing intermediate container [0-9a-f]+$|^Sending build context to Docker daemon|^DEPRECATED: The legacy builder|^ +Install the buildx component|^ +BuildKit is currently disabled|^ +https://docs.docker.com/go/buildx/$|^ +environment-variable\.$`)
	// BuildKit numbers what it does: "#5 [build 2/3] RUN make", "#5 0.045 made".
	kitLine = lazily(`^#(\d+) (.*)$`)
	kitStep = lazily(`^\[(?:\S+ )?(\d+)/(\d+)\] (.*)$`)
	kitText = lazily(`^\d+\.\d+ (.*)$`)
	colours = lazily("\x1b\\[[0-9;]*m")
)

// lazily is a pattern that is compiled where it is used: this package is part of
// init, which starts with every sandbox.
func lazily(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

func (n *engineNews) line(text string) {
	text = colours().ReplaceAllString(text, "")
	if m := kitLine().FindStringSubmatch(text); m != nil && n.engine == "docker" && (n.kit != nil || n.now.number == 0) {
		n.kitLine(m[1], m[2])
		return
	}
	if n.kit != nil && n.fault != "" { // an excerpt, and the same again
		n.b.tell(providers.BuildEvent{Kind: providers.BuildOutput, Text: text})
		return
	}
	if m := stepBegins().FindStringSubmatch(text); m != nil && n.kit == nil {
		s := n.numbered(m[2], m[3], m[4])
		s.number, s.of = s.number-n.passed, s.of-n.marks
		if n.follows(&s, m[1]) {
			if n.marks > 0 && s.text == n.mark {
				n.passed++
				return
			}
			n.finish()
			n.now = n.begin(s)
			return
		}
	}
	if strings.HasPrefix(text, "[Warning] one or more build args were not consumed: ["+markArg+"]") {
		return
	}
	if m := stepFails().FindStringSubmatch(text); m != nil {
		n.fault = m[1] + m[2]
		return
	}
	if n.engine == "docker" && daemonSays().MatchString(text) {
		return
	}
	n.output(&n.now, text)
}

// kitLine takes a line of BuildKit, whose steps may run at the same time.
func (n *engineNews) kitLine(id, text string) {
	s := n.kit[id]
	if s == nil {
		if n.kit == nil {
			n.kit = map[string]*engineStep{}
		}
		s = &engineStep{}
		n.kit[id] = s
		if m := kitStep().FindStringSubmatch(text); m != nil {
			if is := n.numbered(m[1], m[2], m[3]); is.number > 0 {
				*s = n.begin(is)
			}
			return
		}
	}
	if why, ok := strings.CutPrefix(text, "ERROR: "); ok {
		if n.fault == "" && why != "context canceled" {
			n.fault = why
			n.now = *s
		}
		s.done = true
		return
	}
	if s.number == 0 {
		return // the engine's own doings
	}
	if m := kitText().FindStringSubmatch(text); m != nil {
		n.output(s, m[1])
	} else if (strings.HasPrefix(text, "DONE ") || text == "CACHED") && !s.done {
		s.done = true
		n.b.tell(providers.BuildEvent{Kind: providers.BuildDone, Step: s.number, Text: s.text, Took: time.Since(s.since)})
	}
}

// moreSteps is how many steps a Dockerfile can have beside its own, which the images
// have that it is from.
const moreSteps = 64

// numbered is a step as a line says it. What a Dockerfile of that many lines cannot
// have has no number: a step prints what it likes.
func (n *engineNews) numbered(number, steps, text string) engineStep {
	k, err := strconv.Atoi(number)
	of := k
	if err == nil && steps != "" {
		of, err = strconv.Atoi(steps)
	}
	if err != nil || k < 1 || k > of || of > strings.Count(n.b.m.Dockerfile, "\n")+1+moreSteps {
		return engineStep{}
	}
	return engineStep{number: k, of: of, counts: steps != "", text: text}
}

// follows reports whether s is the next step, in the stage that its line names. The
// first one is told before any step can print.
func (n *engineNews) follows(s *engineStep, stage string) bool {
	s.stage = stage
	if s.number < 1 {
		return false
	}
	if s.number == 1 {
		return n.now.number == 0 || nextStage(n.now.stage, stage)
	}
	return s.stage == n.now.stage && s.number == n.now.number+1 && s.counts == n.now.counts && (s.of == n.now.of || !s.counts)
}

// nextStage reports whether stages like 1/2 and 2/2 follow each other; one that is
// not needed is left out.
func nextStage(now, next string) bool {
	a, count, _ := strings.Cut(now, "/")
	b, same, _ := strings.Cut(next, "/")
	i, err := strconv.Atoi(a)
	k, err2 := strconv.Atoi(b)
	of, err3 := strconv.Atoi(count)
	return errors.Join(err, err2, err3) == nil && count == same && i < k && k <= of
}

// begin tells that a step was begun.
func (n *engineNews) begin(s engineStep) engineStep {
	n.b.engineSteps = s.of
	n.b.tell(providers.BuildEvent{Kind: providers.BuildStarted, Step: s.number, Text: s.text})
	s.since = time.Now()
	return s
}

// output tells a line that a step has printed.
func (n *engineNews) output(s *engineStep, text string) {
	if s.last = append(s.last, text); len(s.last) > lastLines {
		s.last = s.last[1:]
	}
	n.b.tell(providers.BuildEvent{Kind: providers.BuildOutput, Step: s.number, Text: text})
}

// finish tells that the step that runs is done.
func (n *engineNews) finish() {
	if n.now.number > 0 {
		n.b.tell(providers.BuildEvent{Kind: providers.BuildDone, Step: n.now.number, Text: n.now.text, Took: time.Since(n.now.since)})
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
	s := &n.now
	se := &providers.BuildStepError{Step: s.number, Steps: s.of, Text: s.text, Status: status, Last: s.last}
	message := fmt.Sprintf("step %d of %d", se.Step, se.Steps)
	if s.number == 0 {
		se.Text, message = n.engine+" build", "no step was begun"
	}
	return &errdefs.Error{Code: "E7010", Op: opBuild + " " + n.b.m.Name, Message: message, Err: se}
}
