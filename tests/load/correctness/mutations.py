"""Names of the ways in which ``broken_connector`` can be broken."""

MUTATION_NAMES = ("no-verification", "no-fence", "no-adapter", "no-trimming")
