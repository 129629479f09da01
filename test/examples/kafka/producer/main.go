// Command producer writes to Kafka what Delaybridge is to deliver later:
//
//	go run ./test/examples/kafka/producer -delay 5s -key order-7 '{"order":7}'
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "Kafka brokers, with commas between")
	topic := flag.String("topic", "bridge.schedule", "topic that the bridge reads from")
	target := flag.String("target", "kafka://orders", "where the message goes")
	delay := flag.Duration("delay", 5*time.Second, "how long from now")
	id := flag.String("id", "", "the message's identity: the same again replaces it")
	key := flag.String("key", "", "Kafka key, which comes along to the target")
	flag.Parse()

	w := &kafka.Writer{
		Addr:  kafka.TCP(strings.Split(*brokers, ",")...),
		Topic: *topic,
		// The answer of all in-sync replicas is the promise: from there on the
		// message is kept. The zero value would wait for no answer at all.
		RequiredAcks: kafka.RequireAll,
		Balancer:     kafka.Murmur2Balancer{}, // the partitions of Java producers
		BatchTimeout: 10 * time.Millisecond,
	}
	m := kafka.Message{
		Value: []byte(flag.Arg(0)),
		Headers: []kafka.Header{
			{Key: "Bridge-Target", Value: []byte(*target)},
			{Key: "Bridge-Delay", Value: []byte(delay.String())},
		},
	}
	if *key != "" {
		m.Key = []byte(*key)
	}
	if *id != "" {
		m.Headers = append(m.Headers, kafka.Header{Key: "Bridge-Id", Value: []byte(*id)})
	}
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	if err := w.WriteMessages(ctx, m); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("sent")
}
