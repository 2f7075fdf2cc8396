//go:build tools

// Package tools names the program that is built for tests.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
