package envelope

import (
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"sync"
	"time"
)

// builtin is the plan of a type of the standard library whose own encoding
// loses something, or nil.
func builtin(t reflect.Type) *plan {
	switch t {
	case reflect.TypeFor[time.Time]():
		return &plan{enc: encTime, dec: decTime, min: 5}
	case reflect.TypeFor[url.URL]():
		return via(urlToWire, urlFromWire)
	case reflect.TypeFor[url.Userinfo]():
		return via(userToWire, userFromWire)
	case reflect.TypeFor[net.OpError]():
		return via(opErrorToWire, opErrorFromWire)
	case reflect.TypeFor[big.Int](), reflect.TypeFor[big.Float](), reflect.TypeFor[big.Rat]():
		return &plan{enc: encGob, dec: decGob, min: 1}
	}
	if Proto.Is != nil && t.Kind() == reflect.Struct && Proto.Is(reflect.PointerTo(t)) {
		return &plan{enc: encProto, dec: decProto, min: 1}
	}
	return nil
}

// via is the plan of a type T that travels as a W.
func via[T, W any](to func(*T) W, from func(*W) T) *plan {
	w := planLocked(reflect.TypeFor[W]())
	return &plan{
		enc: func(e *encoder, v reflect.Value) error {
			x := to(v.Addr().Interface().(*T))
			return e.value(w, reflect.ValueOf(&x).Elem())
		},
		dec: func(d *decoder, v reflect.Value) error {
			var x W
			if err := d.value(w, reflect.ValueOf(&x).Elem()); err != nil {
				return err
			}
			*v.Addr().Interface().(*T) = from(&x)
			return nil
		},
		min: w.min,
	}
}

// urlWire holds every field of url.URL: String and Parse lose some of them.
type urlWire struct {
	Scheme, Opaque                 string
	User                           *userWire
	Host, Path, Fragment, RawQuery string
	RawPath, RawFragment           string
	ForceQuery, OmitHost           bool
}

type userWire struct {
	Name        string
	Password    string
	HasPassword bool
}

func urlToWire(u *url.URL) urlWire {
	w := urlWire{
		Scheme: u.Scheme, Opaque: u.Opaque, Host: u.Host, Path: u.Path, Fragment: u.Fragment, RawQuery: u.RawQuery,
		RawPath: u.RawPath, RawFragment: u.RawFragment, ForceQuery: u.ForceQuery, OmitHost: u.OmitHost,
	}
	if u.User != nil {
		x := userToWire(u.User)
		w.User = &x
	}
	return w
}

func urlFromWire(w *urlWire) url.URL {
	u := url.URL{
		Scheme: w.Scheme, Opaque: w.Opaque, Host: w.Host, Path: w.Path, Fragment: w.Fragment, RawQuery: w.RawQuery,
		RawPath: w.RawPath, RawFragment: w.RawFragment, ForceQuery: w.ForceQuery, OmitHost: w.OmitHost,
	}
	if w.User != nil {
		x := userFromWire(w.User)
		u.User = &x
	}
	return u
}

func userToWire(u *url.Userinfo) userWire {
	p, ok := u.Password()
	return userWire{Name: u.Username(), Password: p, HasPassword: ok}
}

func userFromWire(w *userWire) url.Userinfo {
	if w.HasPassword {
		return *url.UserPassword(w.Name, w.Password)
	}
	return *url.User(w.Name)
}

// opErrorWire holds the fields of net.OpError, two of which are interfaces.
type opErrorWire struct {
	Op, Net      string
	Source, Addr *addrWire
	Err          error
}

type addrWire struct{ Network, Text string }

func opErrorToWire(e *net.OpError) opErrorWire {
	addr := func(a net.Addr) *addrWire {
		if a == nil {
			return nil
		}
		return &addrWire{a.Network(), a.String()}
	}
	return opErrorWire{Op: e.Op, Net: e.Net, Source: addr(e.Source), Addr: addr(e.Addr), Err: e.Err}
}

func opErrorFromWire(w *opErrorWire) net.OpError {
	addr := func(a *addrWire) net.Addr {
		if a == nil {
			return nil
		}
		ap, err := netip.ParseAddrPort(a.Text)
		switch {
		case err == nil && a.Network == "tcp":
			return net.TCPAddrFromAddrPort(ap)
		case err == nil && a.Network == "udp":
			return net.UDPAddrFromAddrPort(ap)
		case a.Network == "unix", a.Network == "unixgram", a.Network == "unixpacket":
			return &net.UnixAddr{Name: a.Text, Net: a.Network}
		}
		return otherAddr{a.Network, a.Text}
	}
	return net.OpError{Op: w.Op, Net: w.Net, Source: addr(w.Source), Addr: addr(w.Addr), Err: w.Err}
}

// otherAddr is an address of a network that is not known here.
type otherAddr struct{ network, text string }

func (a otherAddr) Network() string { return a.network }
func (a otherAddr) String() string  { return a.text }

// How the location of a time travels.
const (
	zoneUTC   = 0
	zoneLocal = 1 // of the sender: name and offset of the zone in force
	zoneNamed = 2 // name of the location, offset in force
)

// encTime sends instant, zone name and offset; the monotonic reading stays.
func encTime(e *encoder, v reflect.Value) error {
	t := v.Addr().Interface().(*time.Time)
	e.buf = appendHead(e.buf, majorArray, 5)
	e.buf = appendInt(e.buf, t.Unix())
	e.buf = appendHead(e.buf, majorUint, uint64(t.Nanosecond()))
	zone, offset := t.Zone()
	kind := uint64(zoneNamed)
	switch t.Location() {
	case time.UTC:
		kind, zone = zoneUTC, ""
	case time.Local:
		kind = zoneLocal
	default:
		zone = t.Location().String()
	}
	e.buf = appendHead(e.buf, majorUint, kind)
	e.buf = appendText(e.buf, zone)
	e.buf = appendInt(e.buf, int64(offset))
	return nil
}

func decTime(d *decoder, v reflect.Value) error {
	if err := d.array(5); err != nil {
		return err
	}
	sec, err := d.int()
	if err != nil {
		return err
	}
	nsec, err := d.uint()
	if err != nil {
		return err
	}
	kind, err := d.uint()
	if err != nil {
		return err
	}
	zone, err := d.text()
	if err != nil {
		return err
	}
	offset, err := d.int()
	if err != nil {
		return err
	}
	const day = 24 * 60 * 60
	if nsec >= 1e9 || kind > zoneNamed || offset < -7*day || offset > 7*day {
		return malformed("not a time")
	}
	t := time.Unix(sec, int64(nsec))
	switch kind {
	case zoneUTC:
		t = t.UTC()
	case zoneLocal:
		if name, off := t.Zone(); name != zone || off != int(offset) {
			t = t.In(time.FixedZone(zone, int(offset)))
		}
	case zoneNamed:
		t = inZone(t, zone, int(offset))
	}
	*v.Addr().Interface().(*time.Time) = t
	return nil
}

// zones keeps locations, and that there is none of a name.
var zones struct {
	sync.Mutex
	m map[string]*time.Location
}

const maxZones = 1000 // names come from the other side

// inZone puts t into the location of a name, when it is known here and has the
// offset, else into one of that name with only the offset.
func inZone(t time.Time, name string, offset int) time.Time {
	if name != "" && name != "UTC" && name != "Local" {
		zones.Lock()
		loc, ok := zones.m[name]
		zones.Unlock()
		if !ok {
			loc, _ = time.LoadLocation(name)
			zones.Lock()
			if zones.m == nil {
				zones.m = map[string]*time.Location{}
			}
			if len(zones.m) < maxZones {
				zones.m[name] = loc
			}
			zones.Unlock()
		}
		if loc != nil {
			if x := t.In(loc); offsetOf(x) == offset {
				return x
			}
		}
	}
	return t.In(time.FixedZone(name, offset))
}

func offsetOf(t time.Time) int {
	_, offset := t.Zone()
	return offset
}

type (
	gobEncoder interface{ GobEncode() ([]byte, error) }
	gobDecoder interface{ GobDecode([]byte) error }
)

// encGob is for math/big, whose gob encoding alone keeps precision and
// rounding.
func encGob(e *encoder, v reflect.Value) error {
	b, err := own("GobEncode", v.Type(), v.Addr().Interface().(gobEncoder).GobEncode)
	if err == nil {
		e.bytes(majorBytes, b)
	}
	return err
}

func decGob(d *decoder, v reflect.Value) error {
	b, _, err := d.bytes("bytes", false)
	if err != nil {
		return err
	}
	if err := v.Addr().Interface().(gobDecoder).GobDecode(b); err != nil {
		return refused("GobDecode", v.Type(), err)
	}
	return nil
}

func encProto(e *encoder, v reflect.Value) error {
	b, err := own("protocol buffer encoding", v.Type(), func() ([]byte, error) { return Proto.Marshal(v.Addr().Interface()) })
	if err == nil {
		e.bytes(majorBytes, b)
	}
	return err
}

func decProto(d *decoder, v reflect.Value) error {
	b, _, err := d.bytes("bytes", false)
	if err != nil {
		return err
	}
	if err := Proto.Unmarshal(b, v.Addr().Interface()); err != nil {
		return refused("protocol buffer decoding", v.Type(), err)
	}
	return nil
}
