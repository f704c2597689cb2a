//go:build tools

// Package tools names the programs that are built from this module.
package tools

import (
	_ "github.com/containernetworking/plugins/plugins/main/bridge"
	_ "github.com/containernetworking/plugins/plugins/ipam/host-local"
)
