"""The roles of a deployment: the processes of the cloud, an edge and a client. They do not import FLARE."""
