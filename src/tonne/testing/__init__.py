"""What tests and demonstrations need: fault registry, faulty disk, virtual clock, computed images."""
