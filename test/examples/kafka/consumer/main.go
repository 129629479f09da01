// Command consumer handles each delayed message once, though it may arrive twice:
//
//	go run ./test/examples/kafka/consumer
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "Kafka brokers, with commas between")
	topic := flag.String("topic", "orders", "topic to read")
	group := flag.String("group", "example", "consumer group")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: strings.Split(*brokers, ","), Topic: *topic, GroupID: *group,
		MaxWait: 500 * time.Millisecond, WatchPartitionChanges: true,
	})
	defer func() { _ = r.Close() }()
	fmt.Println("reading", *topic)
	// What was handled. A service of yours does this in its database: a table with
	// the schedule as its key, written in the transaction of the work itself, and
	// cleared of what is older than a copy can be.
	seen := map[string]bool{}
	for {
		m, err := r.FetchMessage(ctx)
		if errors.Is(err, context.Canceled) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		// One schedule is one id at one time: the id alone would also drop the next
		// schedule of the same id.
		schedule := header(m, "Bridge-Id") + " " + header(m, "Bridge-Scheduled-At")
		// Bridge-Attempt above 1 says that a copy may have arrived before. It is a
		// hint and no proof: Kafka delivers again by itself, too.
		if seen[schedule] {
			fmt.Printf("dropped %s, attempt %s: handled before\n", header(m, "Bridge-Id"), header(m, "Bridge-Attempt"))
		} else {
			seen[schedule] = true
			fmt.Printf("handled %s, attempt %s, due %s: %s\n", header(m, "Bridge-Id"), header(m, "Bridge-Attempt"), header(m, "Bridge-Due-At"), m.Value)
		}
		if err := r.CommitMessages(ctx, m); err != nil { // after the work, never before it
			log.Print(err)
		}
	}
}

func header(m kafka.Message, name string) string {
	for _, h := range m.Headers {
		if strings.EqualFold(h.Key, name) {
			return string(h.Value)
		}
	}
	return ""
}
