package delaybridge_test

import (
	"strings"
	"testing"

	"delaybridge"
)

func TestParseTarget(t *testing.T) {
	long := strings.Repeat("t", delaybridge.MaxTopicBytes)
	deep := strings.Repeat("s", delaybridge.MaxSubjectBytes)
	for _, c := range []struct{ sentence, in, sink, name string }{
		{"a topic", "kafka://orders", "kafka", "orders"},
		{"every character that a topic may have", "kafka://aZ09._-", "kafka", "aZ09._-"},
		{"three dots are a topic", "kafka://...", "kafka", "..."},
		{"one underscore is nobody's own", "kafka://_orders", "kafka", "_orders"},
		{"the longest topic", "kafka://" + long, "kafka", long},
		{"a subject", "nats://orders.timeout", "nats", "orders.timeout"},
		{"core NATS", "nats-core://orders.timeout", "nats-core", "orders.timeout"},
		{"a subject beyond ASCII", "nats://bestellungen.größe.数", "nats", "bestellungen.größe.数"},
		{"a dollar sign inside", "nats://a.$JS", "nats", "a.$JS"},
		{"two underscores are for Kafka only", "nats://__orders", "nats", "__orders"},
		{"the longest subject", "nats://" + deep, "nats", deep},
		{"blanks and tabs around are trimmed", " \tnats://x\t ", "nats", "x"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := delaybridge.ParseTarget(c.in)
			want := delaybridge.Target{Sink: c.sink, Name: c.name}
			if err != nil || got != want {
				t.Fatalf("ParseTarget(%q) = %v, %v; want %v", c.in, got, err, want)
			}
			if again, err := delaybridge.ParseTarget(got.String()); err != nil || again != got {
				t.Errorf("%q does not read back: %v, %v", got.String(), again, err)
			}
		})
	}
}

func TestParseTargetRefuses(t *testing.T) {
	for _, c := range []struct{ sentence, in, code, reason string }{
		{"nothing", "", "invalid_target", "empty"},
		{"blanks only", " \t", "invalid_target", "empty"},
		{"no sink", "orders", "invalid_target", "has no sink"},
		{"one slash", "kafka:/orders", "invalid_target", "has no sink"},
		{"an empty sink", "://orders", "unknown_sink", "there are kafka, nats, nats-core"},
		{"an unknown sink", "mqtt://orders", "unknown_sink", "there are kafka, nats, nats-core"},
		{"a sink in capitals", "KAFKA://orders", "unknown_sink", "lower case"},
		{"a blank before the colon", "kafka ://orders", "unknown_sink", "without blanks"},

		{"an empty topic", "kafka://", "invalid_target", "empty"},
		{"the topic .", "kafka://.", "invalid_target", "named . or .."},
		{"the topic ..", "kafka://..", "invalid_target", "named . or .."},
		{"Kafka's own topic", "kafka://__consumer_offsets", "forbidden_target", "Kafka's own"},
		{"a topic that is too long", "kafka://" + strings.Repeat("t", 250), "invalid_target", "at most 249"},
		{"a blank in a topic", "kafka://a b", "invalid_target", "cannot be in a topic"},
		{"a blank before a topic", "kafka:// a", "invalid_target", "cannot be in a topic"},
		{"a slash in a topic", "kafka://a/b", "invalid_target", "cannot be in a topic"},
		{"a wildcard in a topic", "kafka://a*", "invalid_target", "cannot be in a topic"},
		{"a letter beyond ASCII in a topic", "kafka://größe", "invalid_target", "cannot be in a topic"},
		{"broken UTF-8 in a topic", "kafka://a\xff", "invalid_target", "cannot be in a topic"},
		{"a NUL byte in a topic", "kafka://a\x00", "invalid_target", "cannot be in a topic"},

		{"an empty subject", "nats://", "invalid_target", "empty"},
		{"an empty token in the middle", "nats://t..x", "invalid_target", "tokens"},
		{"an empty token at the start", "nats://.t", "invalid_target", "tokens"},
		{"an empty token at the end", "nats://t.", "invalid_target", "tokens"},
		{"a dot alone", "nats://.", "invalid_target", "tokens"},
		{"a wildcard for a token", "nats://t.*", "invalid_target", "wildcards"},
		{"a wildcard for the rest", "nats://t.>", "invalid_target", "wildcards"},
		{"a star within a token", "nats://t.a*", "invalid_target", "wildcards"},
		{"a blank", "nats://a b", "invalid_target", "no blanks"},
		{"a tab", "nats://a\tb", "invalid_target", "no blanks"},
		{"a line break", "nats://a\r\nPUB x", "invalid_target", "no blanks"},
		{"a line break at the end", "nats://a\n", "invalid_target", "no blanks"},
		{"a NUL byte", "nats://a\x00", "invalid_target", "control"},
		{"a DEL byte", "nats://a\x7f", "invalid_target", "control"},
		{"a control character beyond ASCII", "nats://a\u0085b", "invalid_target", "no blanks"},
		{"a blank beyond ASCII", "nats://a\u00a0b", "invalid_target", "no blanks"},
		{"broken UTF-8", "nats://a\xff", "invalid_target", "UTF-8"},
		{"a subject that is too long", "nats://" + strings.Repeat("s", 1025), "invalid_target", "at most 1024"},
		{"the JetStream API", "nats://$JS.API.STREAM.DELETE.VICTIM", "forbidden_target", "server's own"},
		{"the system account", "nats-core://$SYS.REQ.SERVER.PING", "forbidden_target", "server's own"},
		{"an inbox", "nats://_INBOX.abc", "forbidden_target", "server's own"},
		{"what begins as an inbox", "nats-core://_INBOXES", "forbidden_target", "server's own"},
		{"a route reply", "nats://_R_.x.y", "forbidden_target", "server's own"},
		{"a gateway reply", "nats://_GR_.x.y", "forbidden_target", "server's own"},
		{"the JetStream API in small letters", "nats://$js.api.STREAM.DELETE.VICTIM", "forbidden_target", "server's own"},
		{"an inbox in small letters", "nats://_inbox.abc", "forbidden_target", "server's own"},
		{"a full-width dollar sign", "nats://\uff04JS.API.INFO", "forbidden_target", "server's own"},
		{"a small dollar sign", "nats://\ufe69JS.API.INFO", "forbidden_target", "server's own"},
		{"a dollar sign in percent encoding", "nats://%24JS.API.INFO", "forbidden_target", "server's own"},
		{"and encoded once more", "nats://%2524JS.API.INFO", "forbidden_target", "server's own"},
		{"full-width letters", "nats://\uff3fINBOX.abc", "forbidden_target", "server's own"},
		{"an inbox behind an encoded dot", "nats://%2e_INBOX.abc", "forbidden_target", "server's own"},
		{"a combining mark over the dollar sign", "nats://$\u0301JS.API.INFO", "forbidden_target", "server's own"},
		{"what takes no place", "nats://\u200b$JS.API.INFO", "invalid_target", "invisible"},
		{"a text that turns round", "nats://orders.\u202egpj", "invalid_target", "invisible"},
		{"a byte order mark", "nats://\ufefforders", "invalid_target", "invisible"},
		{"a filler that looks like a blank", "nats://orders\u3164", "invalid_target", "invisible"},
		{"a dot as overlong UTF-8", "nats://orders\xc0\xaex", "invalid_target", "UTF-8"},
		{"Kafka's own topic behind an encoded letter", "kafka://%5f_consumer_offsets", "invalid_target", "cannot be in a topic"},
		{"Kafka's own topic in full-width letters", "kafka://\uff3f\uff3fconsumer_offsets", "invalid_target", "cannot be in a topic"},
		{"a NUL byte before Kafka's own", "kafka://\x00__consumer_offsets", "invalid_target", "cannot be in a topic"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := delaybridge.ParseTarget(c.in)
			checkRefused(t, got, err, c.code, c.in, c.reason)
		})
	}
}

func TestValidateID(t *testing.T) {
	for _, c := range []struct{ sentence, in, reason string }{
		{"a word", "order-17", ""},
		{"blanks inside", "order 17", ""},
		{"beyond ASCII", "größe/数", ""},
		{"the longest", strings.Repeat("x", 256), ""},
		{"nothing", "", "empty"},
		{"one byte too long", strings.Repeat("x", 257), "at most 256"},
		{"bytes count, not characters", strings.Repeat("ö", 129), "at most 256"},
		{"a blank at the start", " x", "blanks at an end"},
		{"a tab at the end", "x\t", "blanks at an end"},
		{"a blank alone", " ", "blanks at an end"},
		{"a tab inside", "a\tb", "control"},
		{"a line break", "a\nb", "control"},
		{"a NUL byte", "a\x00b", "control"},
		{"a DEL byte", "a\x7fb", "control"},
		{"a line separator", "a\u2028b", "line breaks"},
		{"broken UTF-8", "a\xff", "UTF-8"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			err := delaybridge.ValidateID(c.in)
			if c.reason == "" {
				if err != nil {
					t.Errorf("ValidateID(%q) = %v", c.in, err)
				}
				return
			}
			checkRefused(t, struct{}{}, err, "invalid_id", c.in, c.reason)
		})
	}
}

func TestFoldName(t *testing.T) {
	for in, want := range map[string]string{
		"orders.new": "orders.new", "Orders.NEW": "orders.new", "größe.数": "größe.数",
		"\uff22ridge\uff0eschedule": "bridge.schedule", "bridge\u2024schedule": "bridge.schedule", "bridge\u3002schedule": "bridge.schedule",
		"bridge%2Eschedule": "bridge.schedule", "bridge%252eschedule": "bridge.schedule", "%zz%62ridge": "%zzbridge",
		"bri\u200bdge.schedule": "bridge.schedule", "bridge.schedule.": "bridge.schedule", " bridge.schedule\x00": "bridge.schedule",
		"bridge.\u017fchedule": "bridge.schedule", "\u212aafka": "kafka", "%": "%", "": "",
	} {
		if got := delaybridge.FoldName(in); got != want {
			t.Errorf("FoldName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestSteers(t *testing.T) {
	for name, want := range map[string]bool{
		"Bridge-Delay": true, "bridge-anything": true, "BRIDGE-": true,
		"Nats-Msg-Id": true, "nATS-Rollup": true, "Status": true, "status": true, "DESCRIPTION": true,
		" Nats-Rollup": true, "Nats-Rollup\t": true, "\u00a0status ": true, "\r\nBridge-Id": true,
		"Bridge": false, "Bridges-x": false, "X-Bridge-Delay": false, "Natsy": false,
		"Status-Code": false, "Content-Type": false, "": false, "ce-id": false,
	} {
		if got := delaybridge.Steers(name); got != want {
			t.Errorf("Steers(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestTellsOfFailure(t *testing.T) {
	for name, want := range map[string]bool{
		"Bridge-Error": true, "bridge-ERROR": true, "Bridge-Rejected-Delay": true, "BRIDGE-REJECTED-": true,
		"Bridge-Errors": false, "Bridge-Rejected": false, "Bridge-Delay": false, "X-Bridge-Error": false, "": false,
	} {
		if got := delaybridge.TellsOfFailure(name); got != want {
			t.Errorf("TellsOfFailure(%q) = %v, want %v", name, got, want)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"kafka://orders", "nats://a.b", "nats-core://x", "nats://$JS.API", "kafka://__x", "nats://a..b", "mqtt://x", "://"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := delaybridge.ParseTarget(s)
		if err != nil {
			checkFieldError(t, err)
			return
		}
		if got.String() != delaybridge.TrimBlanks(s) {
			t.Errorf("ParseTarget(%q) changed it to %q", s, got)
		}
		if strings.ContainsAny(got.Name, "*> \t\r\n\x00\x7f") || got.Name == "" ||
			strings.HasPrefix(got.Name, "$") || strings.HasPrefix(got.Name, "_INBOX") || strings.HasPrefix(got.Name, "_R_") ||
			got.Sink != delaybridge.SinkKafka && delaybridge.SystemSubjectPrefix(delaybridge.FoldName(got.Name)) != "" {
			t.Errorf("ParseTarget(%q) let %q pass", s, got.Name)
		}
	})
}

func FuzzValidateID(f *testing.F) {
	for _, s := range []string{"order-17", "", " x", "a\x00", "\xff", "größe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if err := delaybridge.ValidateID(s); err != nil {
			checkFieldError(t, err)
		} else if s == "" || len(s) > delaybridge.MaxIDBytes || strings.TrimSpace(s) != s && strings.Trim(s, "\r\n\x00") != s {
			t.Errorf("ValidateID let %q pass", s)
		}
	})
}
