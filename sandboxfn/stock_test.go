package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// thing is something in a stock.
type thing struct {
	n      int
	st     stockState
	dead   atomic.Bool
	ended  atomic.Bool
	inUse  atomic.Int64
	onlyIn *shop
}

func (x *thing) state() *stockState { return &x.st }
func (x *thing) alive() bool        { return !x.dead.Load() }
func (x *thing) end(orderly bool) {
	if x.ended.Swap(true) {
		x.onlyIn.t.Errorf("%d ended twice", x.n)
	}
	if orderly && x.inUse.Load() > 0 {
		x.onlyIn.t.Errorf("%d ended in order while it is used", x.n)
	}
	x.onlyIn.mu.Lock()
	defer x.onlyIn.mu.Unlock()
	x.onlyIn.gone = append(x.onlyIn.gone, fmt.Sprint(x.n, " ", orderly))
}

// shop is a stock of things that take a second to make.
type shop struct {
	t    *testing.T
	care upkeep
	*stock[*thing]
	order order[*thing]
	fails func(n int) error
	made  atomic.Int64

	mu   sync.Mutex
	gone []string // guarded by mu
}

func newShop(t *testing.T, slots int, o terms) *shop {
	s := &shop{t: t}
	s.care.init()
	s.stock = newStock[*thing](&s.care, slots, func() error { return errors.New("closed") })
	if o.max == 0 {
		o.max = 10
	}
	s.order = order[*thing]{terms: o, ended: func(ctx context.Context) error { return ctx.Err() }, start: func(ctx context.Context) (*thing, error) {
		n := int(s.made.Add(1))
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if s.fails != nil {
			if err := s.fails(n); err != nil {
				return nil, err
			}
		}
		return &thing{n: n, onlyIn: s}, nil
	}}
	return s
}

// close ends the stock and checks that nothing is left.
func (s *shop) end() {
	s.t.Helper()
	if err := s.care.close(context.Background(), s.stock.close); err != nil {
		s.t.Error(err)
	}
	if c := s.counts; c.created != c.ended || len(s.all)+len(s.idle)+len(s.open)+len(s.waiting)+len(s.starting) != 0 {
		s.t.Errorf("left: %+v, %d in all", c, len(s.all))
	}
}

func (s *shop) take() *thing {
	s.t.Helper()
	x, err := s.get(context.Background(), &s.order)
	if err != nil {
		s.t.Fatal(err)
	}
	x.inUse.Add(1)
	return x
}

func (s *shop) back(x *thing) {
	x.inUse.Add(-1)
	s.release(x, s.order.terms)
}

// are checks how many there are, and how many of them are idle.
func (s *shop) are(what string, all, idle int) {
	s.t.Helper()
	synctest.Wait()
	s.stock.mu.Lock()
	defer s.stock.mu.Unlock()
	if len(s.all) != all || len(s.idle) != idle {
		s.t.Errorf("%s: %d, %d of them idle; want %d and %d", what, len(s.all), len(s.idle), all, idle)
	}
}

func TestStockSpare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, 1, terms{max: 4, spare: 2, idle: time.Minute})
		defer s.end()
		a := s.take()
		s.are("one in use and two beyond", 3, 2)
		begin := time.Now()
		b := s.take()
		if took := time.Since(begin); took != 0 {
			t.Errorf("a spare one took %v", took)
		}
		time.Sleep(time.Second)
		s.are("two in use", 4, 2)
		c := s.take()
		time.Sleep(time.Minute)
		s.are("the maximum", 4, 1)
		for _, x := range []*thing{a, b, c} {
			s.back(x)
		}
		s.are("none in use", 4, 4)
		time.Sleep(time.Minute + time.Second)
		s.are("after the idle time", 2, 2)
		if s.counts.hits != 2 || s.counts.misses != 1 || s.counts.created != 4 {
			t.Errorf("%+v", s.counts)
		}
	})
}

func TestStockMinimum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, 1, terms{min: 3, max: 5, age: time.Hour})
		defer s.end()
		s.back(s.take())
		s.are("from the first use", 3, 3)
		time.Sleep(30 * time.Minute)
		x := s.take()
		s.giveUp(x, false)
		s.are("one was lost", 2, 2)
		s.back(s.take())
		time.Sleep(time.Second)
		s.are("after the next use", 3, 3)
		time.Sleep(40 * time.Minute)
		s.are("two were too old", 3, 3)
		if s.counts.created != 6 {
			t.Errorf("%+v, want 6 created", s.counts)
		}
	})
}

// A thing for one use is not handed out again, and the minimum is made anew.
func TestStockOneUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, 1, terms{max: 2, min: 1, uses: 1})
		defer s.end()
		seen := map[int]bool{}
		for range 4 {
			x := s.take()
			if seen[x.n] {
				t.Errorf("%d again", x.n)
			}
			seen[x.n] = true
			s.back(x)
			time.Sleep(time.Second)
			s.are("after a use", 1, 1)
			if !x.ended.Load() {
				t.Error("it lives on")
			}
		}
		if s.counts.hits != 3 {
			t.Errorf("%+v", s.counts)
		}
		// One who gives up at the moment it is handed over has not used it.
		ctx, cancel := context.WithCancel(context.Background())
		a, b := s.take(), s.take()
		go func() {
			time.Sleep(time.Second / 2)
			cancel()
		}()
		if _, err := s.get(ctx, &s.order); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.back(a)
		s.back(b)
	})
}

func TestStockSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, 3, terms{max: 2, idle: time.Minute})
		defer s.end()
		var got []*thing
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				x := s.take()
				mu.Lock()
				defer mu.Unlock()
				got = append(got, x)
			})
		}
		wg.Wait()
		s.are("five in two", 2, 0)
		slices.SortFunc(got, func(a, b *thing) int { return int(b.inUse.Load() - a.inUse.Load()) })
		full, other := got[0], got[4]
		if full.inUse.Load() != 3 || other.inUse.Load() != 2 {
			t.Errorf("%d and %d in use", full.inUse.Load(), other.inUse.Load())
		}
		s.back(full)
		s.back(full)
		if x := s.take(); x != other {
			t.Error("not the one that is nearest to full")
		}
		s.back(other)
		s.back(other)
		s.back(other)
		time.Sleep(2 * time.Minute)
		s.are("the other is idle for long", 1, 0)
		for range 2 {
			if x := s.take(); x != full {
				t.Error("another one was started")
			}
		}
		// It is full: the next one needs another.
		if x := s.take(); x == full {
			t.Error("a fourth slot")
		} else {
			s.back(x)
		}
		full.inUse.Add(-1)
		s.drain(full)
		synctest.Wait()
		if full.ended.Load() {
			t.Error("ended while it is used")
		}
		if x := s.take(); x == full {
			t.Error("one that is to end is used")
		} else {
			s.back(x)
		}
		s.back(full)
		s.back(full)
		synctest.Wait()
		if !full.ended.Load() || !slices.Contains(s.gone, fmt.Sprint(full.n, " false")) {
			t.Errorf("the end of one that panicked: %v", s.gone)
		}
	})
}

// A start that fails is the failure of those who hoped for it alone.
func TestStockFailures(t *testing.T) {
	for _, c := range []struct{ slots, max, users, failed int }{{1, 10, 4, 1}, {4, 10, 4, 4}, {4, 10, 8, 4}, {2, 1, 6, 2}} {
		synctest.Test(t, func(t *testing.T) {
			s := newShop(t, c.slots, terms{max: c.max, idle: time.Minute})
			defer s.end()
			s.fails = func(n int) error {
				if n == 1 {
					return errors.New("bad luck")
				}
				return nil
			}
			var failed atomic.Int64
			var wg sync.WaitGroup
			for range c.users {
				wg.Go(func() {
					x, err := s.get(context.Background(), &s.order)
					if err != nil {
						failed.Add(1)
						return
					}
					x.inUse.Add(1)
					time.Sleep(time.Second)
					s.back(x)
				})
			}
			wg.Wait()
			if n := failed.Load(); n != int64(c.failed) {
				t.Errorf("%+v: %d failed", c, n)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // all fail, at different times
		s := newShop(t, 1, terms{min: 3, spare: 2, idle: time.Minute})
		defer s.end()
		s.fails = func(n int) error {
			time.Sleep(time.Duration(n) * time.Second)
			return errors.New("no luck")
		}
		begin := time.Now()
		if _, err := s.get(context.Background(), &s.order); err == nil || time.Since(begin) > 5*time.Second || s.made.Load() != 3 {
			t.Errorf("after %v and %d starts: %v", time.Since(begin), s.made.Load(), err)
		}
		if _, err := s.get(context.Background(), &s.order); err == nil || s.made.Load() != 6 {
			t.Errorf("again: %v, %d starts", err, s.made.Load())
		}
	})
	synctest.Test(t, func(t *testing.T) { // a spare one is nobody's
		s := newShop(t, 1, terms{spare: 1, idle: time.Minute})
		defer s.end()
		s.fails = func(n int) error {
			if n == 2 {
				return errors.New("bad luck")
			}
			return nil
		}
		s.back(s.take())
		s.are("the spare one failed", 1, 1)
	})
}

// TestStockAtRandom uses a stock from many goroutines in every way there is.
func TestStockAtRandom(t *testing.T) {
	for _, slots := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			s := newShop(t, slots, terms{min: 1, max: 5, spare: 1, idle: 2 * time.Second, age: time.Minute})
			s.fails = func(n int) error {
				if n%7 == 0 {
					return errors.New("bad luck")
				}
				return nil
			}
			var wg sync.WaitGroup
			for range 30 {
				wg.Go(func() {
					for range 50 {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(5000))*time.Millisecond)
						x, err := s.get(ctx, &s.order)
						cancel()
						if err != nil {
							continue
						}
						if n := x.inUse.Add(1); n > int64(slots) {
							t.Errorf("%d users of one thing", n)
						}
						time.Sleep(time.Duration(rand.IntN(2000)) * time.Millisecond)
						switch rand.IntN(10) {
						case 0:
							s.giveUp(x, false)
							s.back(x)
						case 1:
							x.inUse.Add(-1)
							s.drain(x)
						case 2:
							x.dead.Store(true)
							s.giveUp(x, false)
							s.back(x)
						default:
							s.back(x)
						}
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Minute)
			s.stock.mu.Lock()
			all, idle, waiting := len(s.all), len(s.idle), len(s.waiting)
			s.stock.mu.Unlock()
			if all > 5 || idle != all || waiting != 0 {
				t.Errorf("at rest: %d, %d idle, %d waiting", all, idle, waiting)
			}
			s.end()
		})
	}
}
