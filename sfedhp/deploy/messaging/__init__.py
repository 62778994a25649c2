"""Messages between a server and its members: protocol, transport, requests, heartbeats, replies."""
