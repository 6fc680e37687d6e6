"""When and where work runs: the Prefect flows and the command line."""
