"""Which engines are well: what their answers tell, and what probes find out of those that nothing was heard of."""
