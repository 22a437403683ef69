"""A checkpoint recognised: its spec bound, its units planned, and the views that show it in another form
(adapters, quantised weights, other layers, other vocabularies).
"""
