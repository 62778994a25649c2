"""Messages between a server and its members: format, transport, requests, heartbeats, replies. No FLARE."""
