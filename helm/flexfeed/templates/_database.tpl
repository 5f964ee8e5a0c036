{{/* The database: its address and its password. */}}

{{- define "flexfeed.needsDatabase" -}}
{{- if and (ne .Values.database.mode "sqlite") (or .Values.source.enabled .Values.console.enabled) }}yes{{ end -}}
{{- end -}}

{{- define "flexfeed.bundled" -}}
{{- if and (include "flexfeed.needsDatabase" .) (eq .Values.database.mode "bundled") }}yes{{ end -}}
{{- end -}}

{{/* The Secret with the URL. That of an external database has a name of its own, so that the
bundled database's stays unchanged, with the only password that opens the volume. */}}
{{- define "flexfeed.databaseSecret" -}}
{{- $made := printf "%s-database%s" (include "flexfeed.fullname" .) (ternary "-url" "" (eq .Values.database.mode "external")) -}}
{{- default $made .Values.database.existingSecret -}}
{{- end -}}

{{/* Variables of a program that opens the database. An empty DATABASE_URL counts as none, and
overrides the image's default. */}}
{{- define "flexfeed.databaseVariables" -}}
{{- if ne .Values.database.mode "sqlite" }}
- name: DATABASE_URL
  value: ""
- name: DATABASE_URL_FILE
  value: /etc/flexfeed/database/url
{{- end }}
{{- end -}}

{{- define "flexfeed.databaseMount" -}}
{{- if ne .Values.database.mode "sqlite" }}
- name: database
  mountPath: /etc/flexfeed/database
  readOnly: true
{{- end }}
{{- end -}}

{{- define "flexfeed.databaseVolume" -}}
{{- if ne .Values.database.mode "sqlite" }}
- name: database
  secret:
    secretName: {{ include "flexfeed.databaseSecret" . }}
    defaultMode: 0440
    items:
      - key: {{ .Values.database.urlKey }}
        path: url
      {{- with .Values.database.caKey }}
      - key: {{ . }}
        path: ca.crt
      {{- end }}
{{- end }}
{{- end -}}

{{/* Annotation that replaces pods after a change of the database's values. Generated passwords are
unknown here; of given ones only the beginning of a hash is shown, which does not reveal them. */}}
{{- define "flexfeed.databaseSum" -}}
{{- with printf "%s%s" (default "" .Values.database.url) (default "" .Values.database.bundled.password) }}
checksum/database: {{ sha256sum . | trunc 8 | quote }}
{{- end }}
{{- end -}}

{{/* Password of the bundled database: (list $ the existing Secret, or nothing). The server sets it
only when its volume is new. */}}
{{- define "flexfeed.bundledPassword" -}}
{{- $top := index . 0 -}}
{{- $found := default dict (index . 1) -}}
{{- $database := $top.Values.database -}}
{{- $given := $database.bundled.password -}}
{{- $kept := index (default dict $found.data) $database.passwordKey -}}
{{- if $kept -}}
{{- $kept = b64dec $kept -}}
{{- if and $given (ne $given $kept) -}}
{{- fail (printf "\n\ndatabase.bundled.password: the database has another one, that of the Secret %s, and the chart cannot change it. Leave it out, or change it in the database first: see docs/kubernetes.md, \"Changing the password of the bundled database\"." (include "flexfeed.databaseSecret" $top)) -}}
{{- end -}}
{{- $kept -}}
{{- else if and (not $given) (index (default dict (default dict $found.metadata).annotations) "helm.sh/resource-policy") -}}
{{- fail (printf "\n\ndatabase.passwordKey: the Secret %s has no key %s, and another password would lock all programs out: set the key that it has" (include "flexfeed.databaseSecret" $top) $database.passwordKey) -}}
{{- else -}}
{{- default (randAlphaNum 40) $given -}}
{{- end -}}
{{- end -}}
