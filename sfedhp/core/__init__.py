"""Words and numbers that everything else uses: errors, options, keys, vectors, files; imports nothing else."""
