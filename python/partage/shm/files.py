"""How a file of a hand-over is opened: its directory may be in the hands of the program that we look at.

A FIFO in a file's place must not make us wait, nor a link lead us elsewhere.
"""

import os
from typing import Final

OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
