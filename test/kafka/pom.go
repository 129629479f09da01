// Package kafka holds the list of jars that make up the Apache Kafka which the
// tests run against.
package kafka

import _ "embed"

// POM is the Maven project whose dependencies are Apache Kafka.
//
//go:embed pom.xml
var POM []byte
