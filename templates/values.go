package templates

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
)

const mib = 1 << 20

// units of sizes. A unit with an i counts by 1024, one without by 1000.
var units = []struct {
	name string
	size int64
}{
	{"KiB", 1 << 10}, {"MiB", mib}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
}

var decimal = regexp.MustCompile(`^[0-9]{1,18}(\.[0-9]{1,9})?$`)

// parseSize reads a size with a unit, in bytes.
func parseSize(s string) (int64, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.name)
		if number = strings.TrimRight(number, " "); !ok || !decimal.MatchString(number) {
			continue
		}
		r, ok := new(big.Rat).SetString(number)
		if !ok {
			break
		}
		r.Mul(r, new(big.Rat).SetInt64(u.size))
		if !r.IsInt() || !r.Num().IsInt64() {
			return 0, fmt.Errorf("is not a whole number of bytes, or too large")
		}
		return r.Num().Int64(), nil
	}
	return 0, fmt.Errorf("is not a size")
}

// parseDuration reads a duration of Go, such as 90s or 1h30m.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("is not a duration")
	}
	return d, nil
}

// seconds reads a whole number of seconds.
func seconds(n int64) (time.Duration, error) {
	if n > math.MaxInt64/int64(time.Second) || n < math.MinInt64/int64(time.Second) {
		return 0, fmt.Errorf("is too long")
	}
	return time.Duration(n) * time.Second, nil
}

// networkWords are the networks that are not lists.
var networkWords = []string{"none", "loopback", "host", "all"}

// networkProblem says what is wrong with a network of the model; "" for a good
// one.
func networkProblem(s string) (message, hint string) {
	if slices.Contains(networkWords, s) {
		return "", ""
	}
	items := strings.Split(s, ",")
	for i, item := range items {
		items[i] = strings.TrimSpace(item)
		if slices.Contains(networkWords, items[i]) {
			return items[i] + " stands alone, not in a list", ""
		}
	}
	if _, err := netrule.ParseList(items); err != nil {
		return err.Error(), "write none, loopback, host, all, or a list of host[:port], *.suffix[:port] and CIDR[:port]"
	}
	return "", ""
}

// argTypes are the types of arguments of named commands.
var argTypes = []string{"string", "integer", "float", "boolean"}

// argProblem says why text is not a value of a type; "" when it is.
func argProblem(typ, text string) string {
	var err error
	switch typ {
	case "integer":
		_, err = strconv.ParseInt(text, 10, 64)
	case "float":
		var f float64
		if f, err = strconv.ParseFloat(text, 64); err == nil && (math.IsNaN(f) || math.IsInf(f, 0)) {
			err = strconv.ErrSyntax
		}
	case "boolean":
		if !slices.Contains([]string{"true", "false"}, text) {
			err = strconv.ErrSyntax
		}
	}
	if err != nil {
		return fmt.Sprintf("%q is not of type %s", text, typ)
	}
	return ""
}
