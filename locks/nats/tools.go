//go:build tools

// Package tools names the program that is built for tests.
package tools

import _ "github.com/nats-io/nats-server/v2"
