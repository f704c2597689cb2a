"""The one version of everything: the distribution, the libraries, the agent. CMake reads this line."""

__version__ = "0.1.0"
