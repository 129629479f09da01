package main

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"syscall"
)

// tokenForm is what an HTTP header can carry behind "Bearer ".
var tokenForm = regexp.MustCompile(`^[!-~]+$`)

// apiTokenMax is well below what the headers of a request may take.
const apiTokenMax = 4096

func (s *Settings) checkAPIToken() *settingError {
	switch {
	case s.API.Token == "":
	case !tokenForm.MatchString(string(s.API.Token)):
		return wrong("API_TOKEN", s.API.Token, "takes printable ASCII characters without blanks")
	case len(s.API.Token) > apiTokenMax:
		return wrong("API_TOKEN", s.API.Token, fmt.Sprintf("takes at most %d characters", apiTokenMax))
	}
	return nil
}

// listenAPI listens on BRIDGE_API_ADDR; it returns nil where that is empty. Who
// can reach the API can read and change everything, so without a token it listens
// on loopback only.
func (s *Settings) listenAPI() (net.Listener, error) {
	if s.API.Addr == "" {
		return nil, nil
	}
	open := *wrong("API_ADDR", s.API.Addr, "is reachable from other hosts and takes BRIDGE_API_TOKEN beside it; without a token it takes a loopback address such as 127.0.0.1:8080")
	if s.API.Token == "" && !isLoopbackAddress(string(s.API.Addr)) {
		return nil, open
	}
	l, err := net.Listen("tcp", string(s.API.Addr))
	switch {
	case err != nil:
	case s.API.Token == "" && !isOnLoopback(l):
		_ = l.Close()
		return nil, open
	default:
		return l, nil
	}
	why := err.Error()
	if errors.Is(err, syscall.EADDRINUSE) {
		why = "the address is taken"
	}
	return nil, errors.New(wrong("API_ADDR", s.API.Addr, "cannot be listened on, since "+why+": takes another host:port, or nothing for no API").Error())
}
