// A Go program over NVIDIA's go-nvml, as device plugins and exporters are: prints what NVML says of each device.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type device struct {
	Name, UUID  string
	Total, Used uint64
	Processes   []uint32
}

func check(call string, code nvml.Return) {
	if code != nvml.SUCCESS {
		fmt.Fprintln(os.Stderr, call, nvml.ErrorString(code))
		os.Exit(1)
	}
}

func main() {
	check("Init", nvml.Init())
	defer nvml.Shutdown()
	count, code := nvml.DeviceGetCount()
	check("DeviceGetCount", code)
	devices := []device{}
	for i := 0; i < count; i++ {
		handle, code := nvml.DeviceGetHandleByIndex(i)
		check("DeviceGetHandleByIndex", code)
		var found device
		found.Name, code = handle.GetName()
		check("GetName", code)
		found.UUID, code = handle.GetUUID()
		check("GetUUID", code)
		memory, code := handle.GetMemoryInfo_v2()
		check("GetMemoryInfo_v2", code)
		found.Total, found.Used = memory.Total, memory.Used
		processes, code := handle.GetComputeRunningProcesses()
		check("GetComputeRunningProcesses", code)
		for _, process := range processes {
			found.Processes = append(found.Processes, process.Pid)
		}
		devices = append(devices, found)
	}
	json.NewEncoder(os.Stdout).Encode(devices)
}
