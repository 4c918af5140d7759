"""What a holder has, and the watchdog that renews it."""
