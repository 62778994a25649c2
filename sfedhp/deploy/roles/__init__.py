"""What the cloud, an edge and a client do as processes of a deployment. No FLARE."""
