//go:build race

package test

// raceEnabled has the program built with the race detector where the tests are.
const raceEnabled = true
