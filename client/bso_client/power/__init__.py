"""The power limit at which a training costs least: profiled while it trains, remembered, restored at its end."""
