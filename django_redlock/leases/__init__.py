"""The lease of a holder, and the watchdog that renews it."""
