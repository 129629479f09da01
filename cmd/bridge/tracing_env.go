package main

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// checkTraceEnvironment looks at the variables that the tracing library reads by
// itself. It would go on without those that it cannot read, and write them to
// stderr as they are, a token among them.
func checkTraceEnvironment() error {
	for _, group := range []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"} {
		value := func(name string) string { return strings.TrimSpace(os.Getenv(group + name)) }
		if v := value("ENDPOINT"); v != "" && !isTraceEndpoint(v) {
			return settingError{group + "ENDPOINT", maskURLs(v), traceEndpointForm}
		}
		if !areTraceHeaders(value("HEADERS")) {
			return settingError{group + "HEADERS", "", "takes name=value pairs with commas between, the values percent-encoded"}
		}
		if v := value("TIMEOUT"); !isWholeNumber(v) {
			return settingError{group + "TIMEOUT", v, "takes milliseconds in digits"}
		}
		if v := value("COMPRESSION"); v != "" && v != "gzip" && v != "none" {
			return settingError{group + "COMPRESSION", v, "takes gzip or none"}
		}
		if v := value("CERTIFICATE"); v != "" {
			pem, err := os.ReadFile(v)
			if err != nil {
				return settingError{group + "CERTIFICATE", v, "cannot be read: " + err.Error()}
			}
			if !x509.NewCertPool().AppendCertsFromPEM(pem) {
				return settingError{group + "CERTIFICATE", v, "takes a file with a certificate in PEM"}
			}
		}
		cert, key := value("CLIENT_CERTIFICATE"), value("CLIENT_KEY")
		if cert == "" && key == "" {
			continue
		}
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			return settingError{group + "CLIENT_CERTIFICATE", cert, "takes a certificate, and " + group + "CLIENT_KEY its key: " + err.Error()}
		}
	}
	for _, name := range []string{"SCHEDULE_DELAY", "EXPORT_TIMEOUT", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE"} {
		if v := strings.TrimSpace(os.Getenv("OTEL_BSP_" + name)); !isWholeNumber(v) {
			return settingError{"OTEL_BSP_" + name, v, "takes a number in digits"}
		}
	}
	return nil
}

const traceEndpointForm = "takes a URL such as http://collector:4318"

func isTraceEndpoint(v string) bool {
	u, err := url.Parse(v)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// traceHeaderName is a token of HTTP.
var traceHeaderName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func areTraceHeaders(v string) bool {
	if v == "" {
		return true
	}
	for pair := range strings.SplitSeq(v, ",") {
		name, value, ok := strings.Cut(pair, "=")
		if _, err := url.PathUnescape(value); err != nil || !ok || !traceHeaderName.MatchString(strings.TrimSpace(name)) {
			return false
		}
	}
	return true
}

// isWholeNumber takes what is not set for one, too.
func isWholeNumber(v string) bool {
	n, err := strconv.Atoi(v)
	return v == "" || err == nil && n >= 0
}
