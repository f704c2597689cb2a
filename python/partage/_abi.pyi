# The cffi module that CMake builds from hook/gen/abi.py; its structures are checked at run time, not by mypy.
from typing import Any

ffi: Any
lib: Any
