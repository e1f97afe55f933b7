"""Every flag and variable of a pasted vLLM command, judged for one release: shell -> launch -> arguments -> judge."""
