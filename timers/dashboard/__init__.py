"""The dashboard: pages for people, made on the server, with the same client, rights and scopes as the API.

`site` has the frame around every page (sign-in, errors, Redis away). `overview`, `many`, `timer` and `service` are the
pages themselves, `pages` lists them, and `render` turns them into HTML.
"""
