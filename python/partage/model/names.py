"""Every name that others see: environment, paths, annotations, resource words. Imports nothing.

Read by all rooms and by the generator of the C header of names, so each constant is a plain literal. A name that
stands here is part of the product's interface; renaming one breaks users.
"""

from typing import Final

# ---- annotations, labels, Kubernetes ----
PREFIX: Final = "partage.io/"
GRANT: Final = "partage.io/grant"
DEVICES: Final = "partage.io/devices"
CLASS: Final = "partage.io/class"
WEIGHT: Final = "partage.io/weight"
CEILING: Final = "partage.io/ceiling"
NVLINK: Final = "partage.io/nvlink"
RESIZE: Final = "partage.io/resize"
ASKED: Final = "partage.io/asked"  # what a pod asked for where admission rounded it
USE_INDEX: Final = "partage.io/use-index"
NO_USE_INDEX: Final = "partage.io/nouse-index"
HAMI_NODE_POLICY: Final = "hami.io/node-scheduler-policy"
HAMI_CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
HAMI_WEIGHTS: Final = "hami.io/device-scoring-weights"
HAMI_MEMORY: Final = "hami.io/gpu-memory"  # with the resource hami.io/gpu
HAMI_CORES: Final = "hami.io/gpu-core"
HAMI_IGNORE: Final = "hami.io/webhook"  # label: `ignore`
MIRROR: Final = "kubernetes.io/config.mirror"  # on what kubelet shows of a pod that it has from a file
GANG: Final = "partage.io/gang"
GANG_SIZE: Final = "partage.io/gang-size"
GANG_MIN: Final = "partage.io/gang-min"
GANG_SUBGROUP: Final = "partage.io/gang-subgroup"
CONDITION_PLACED: Final = "partage.io/Placed"
CONDITION_ENFORCED: Final = "partage.io/Enforced"
CONDITION_RESIZED: Final = "partage.io/Resized"
CDI_KIND: Final = "partage.io/share"
NAMESPACE: Final = "partage-system"
SCHEDULER: Final = "partage-scheduler"
ACCOUNT_AGENT: Final = "partage-agent"
ACCOUNT_SCHEDULER: Final = "partage-scheduler"
ACCOUNT_WEBHOOK: Final = "partage-webhook"
CONFIG_MAP: Final = "partage-config"

# ---- files ----
HOST_ROOT: Final = "/run/partage"
USER_DIRECTORY: Final = "partage"  # below $XDG_RUNTIME_DIR; else /tmp/partage-<uid>
SIM_DIRECTORY: Final = "partage-sim"  # below $XDG_RUNTIME_DIR; else /tmp/partage-sim-<uid>
SIM_SYSTEM_DIRECTORY: Final = "/run/partage-sim"  # the machine of all users, where there is one; in containers too
POLICY_FILE: Final = "policy"
LEDGER_FILE: Final = "ledger"
TURNS_FILE: Final = "turns"
MACHINE_FILE: Final = "machine"
PIDS_FILE: Final = "pids"  # beside it: tells pids across pid namespaces
REGISTRY_LOCK: Final = ".lock"  # in the directory of hand-overs: held while shares are added up
ARBITER_LOCK: Final = ".arbiter"  # there too: held by the arbiter of these hand-overs, says who that is
ARBITER_LOG: Final = ".arbiter.log"  # there too: what it says
ARBITER: Final = "partage-arbiter"  # its program, beside the library
# The first that all users of the machine share holds the locks of real devices; owner and mode are checked.
LOCK_DIRECTORIES: Final = ("/run/lock", "/tmp")  # noqa: S108
CDI_DIRECTORY: Final = "/var/run/cdi"
CONFIG_FILE: Final = "/etc/partage/config.yaml"
LIBRARY: Final = "libvgpu.so"
HOST_LIBRARY_DIRECTORY: Final = "/usr/local/lib/partage"
CONTAINER_LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"
DRIVER_LIBRARY: Final = "libcuda.so.1"
NVML_LIBRARY: Final = "libnvidia-ml.so.1"
REAL_DRIVER_MARK: Final = "/proc/driver/nvidia/version"  # there only while NVIDIA's kernel module is loaded

# ---- environment ----
ENV_DIR: Final = "PARTAGE_DIR"  # the hand-over directory of the process
ENV_LIBRARY: Final = "PARTAGE_LIBRARY"  # libvgpu.so, where it does not lie beside the package
ENV_SIM: Final = "PARTAGE_SIM"  # profile of the simulated machine
ENV_SIM_DIR: Final = "PARTAGE_SIM_DIR"  # where its state lies
ENV_SIM_DEV: Final = "PARTAGE_SIM_DEV"  # where its device nodes lie, in place of /dev
ENV_SIM_FORCE: Final = "PARTAGE_SIM_FORCE"  # the simulated driver runs beside a real one
ENV_SIM_LIBRARIES: Final = "PARTAGE_SIM_LIBRARIES"  # directory with the simulated libcuda.so.1, libnvidia-ml.so.1
ENV_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
ENV_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
ENV_SM_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
ENV_SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
ENV_DISABLE_CONTROL: Final = "CUDA_DISABLE_CONTROL"
ENV_OVERSUBSCRIBE: Final = "CUDA_OVERSUBSCRIBE"
ENV_CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
ENV_MAX_GPU_MEM_MB: Final = "MAX_GPU_MEM_MB"

# ---- metrics, ports ----
METRICS_PREFIX: Final = "partage_"
PORT_EXTENDER: Final = 9440
PORT_WEBHOOK: Final = 9443
PORT_METRICS: Final = 9445
PORT_WEB: Final = 9448
#: To listen on: pods of a cluster of IPv6 alone have no other address, and 0.0.0.0 is IPv4's.
EVERY_ADDRESS: Final = ""
