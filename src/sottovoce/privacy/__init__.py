"""What messages give away: bounds, accounts, attacks and the auditor."""
