"""The dashboard: pages for people, made on the server, over the same client, rights and scopes as the API.

`site` has the frame around every page (sign-in, errors, Redis away), `overview`, `lists`, `timer`, `bulk` and `service`
the pages themselves, `render` turns them into HTML.
"""
