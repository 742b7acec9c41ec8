"""Differential privacy: the request, the plan of all noise, the guard at the client, the accountant, the budget."""
