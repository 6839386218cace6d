package near

import "testing"

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"ab", "ba", 2},
	} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("%q, %q: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestBest(t *testing.T) {
	names := []string{"cwd", "command", "env", "timeout", "timeouts"}
	for name, want := range map[string]string{"comand": "command", "dir": "", "timeout_": "timeout", "evn": "env", "": "", "something": ""} {
		if got := Best(name, names); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
