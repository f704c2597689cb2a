"""Hand-overs on the host: directories, policies, CDI specs, and what may be promised on a card."""
