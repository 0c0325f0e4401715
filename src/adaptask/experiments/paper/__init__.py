"""The paper: what it prints, how it trains, and each of its tables and figures as a target."""
