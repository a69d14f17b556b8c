"""Pages for people, in a browser.

routes          the pages about jobs, savings and trials, and the way to all pages
operation       what operators see and do; actions are confirmed in a form
actions         what each action will do, and what its form carries
what_if_pages   what another policy or eta would have cost; what_if simulates it in a process of its own
contents        what pages show; answers: of the queries that every client has, with the reader's rights
all_jobs        all jobs of a reader, which orders, searches and totals need
pictures        what is drawn of it
renderer        makes HTML of it, with the folder templates; static has the style sheet and the script
door            who is let in; paths: where pages are
"""
