//go:build linux

package server

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// wantsUpgrade accepts exactly the given protocol, as a token of a Connection
// header that may list others.
func wantsUpgrade(h http.Header, protocol string) bool {
	if h.Get("Upgrade") != protocol {
		return false
	}
	for _, line := range h.Values("Connection") {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}

// refuseWithoutUpgrade answers a request for a path that is nothing but an
// upgrade to protocol.
func refuseWithoutUpgrade(w http.ResponseWriter, protocol string) {
	w.Header().Set("Upgrade", protocol)
	w.Header().Set("Connection", "Upgrade")
	fault.HTTP(w, http.StatusUpgradeRequired, "E3006", "this path needs an upgrade to "+protocol)
}

// answerUpgrade changes to protocol on a connection that was taken over.
func answerUpgrade(conn net.Conn, protocol string) error {
	if err := conn.SetDeadline(time.Now().Add(headerTimeout)); err != nil {
		return err
	}
	_, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n"))
	return errors.Join(err, conn.SetDeadline(time.Time{}))
}
