"""The dashboard: pages for people, made on the server, with the same client, rights and scopes as the API.

`site` has the frame around every page (sign-in, errors, Redis away). `overview`, `lists`, `timer`, `bulk` and `service`
are the pages themselves, and `render` turns them into HTML.
"""
