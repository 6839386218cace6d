package globals

import (
	"flag"
	"fmt"
	"sync"
)

var (
	counter  int
	results  []string
	seen     map[string]bool
	verbose  bool
	fromFlag int
	limit    = 10
	early    string
	cache    = make(map[string]int)
	once     sync.Once
	model    *int
	mu       sync.Mutex
	shared   = map[string]int{"a": 1}
	pointed  int
	quiet    int
)

func init() { setEarly() }

func setEarly() { early = "x" }

//sandbox:func
func work(s string) int {
	counter++                    // want `work runs in a sandbox, so what it writes to counter is not seen by the rest of the program; return it`
	results = append(results, s) // want `what it writes to results is not seen`
	helper(s)
	if verbose { // want `work runs in a sandbox, where verbose is never set: only the running program sets it; pass it as a parameter`
		fmt.Println(s)
	}
	if fromFlag > limit { // want `where fromFlag is never set`
		return 0
	}
	_ = early
	// Memory between calls is what workers are for.
	if n, ok := cache[s]; ok {
		return n
	}
	cache[s] = len(s)
	once.Do(func() { model = new(int) })
	quiet++ // nobody looks
	pointed = 1
	return *model + shared[s]
}

func helper(s string) { seen[s] = true } // want `work runs in a sandbox, so what it writes to seen is not seen`

func main() {
	flag.IntVar(&fromFlag, "n", 0, "")
	verbose = true
	limit = 5
	work("x")
	fmt.Println(counter, results, len(seen), cache)
	use(&pointed)
	fmt.Println(pointed)
}

func use(*int) {}
