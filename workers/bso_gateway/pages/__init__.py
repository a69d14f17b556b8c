"""Pages for people: the jobs that somebody may read, what is known of each, and why each trial had its batch size.

``door`` finds out who opens a page; ``contents`` asks the optimizer for what a page shows, by the queries that every
client has; ``pictures`` draws it; ``routes`` makes pages of it, with the templates and the style sheet beside it.
``paths`` has their addresses. They change nothing.
"""
