{{/* Settings that programs get by variables. */}}

{{- define "flexfeed.logVariables" -}}
{{- $prefix := index . 1 -}}
- name: {{ $prefix }}LOG_FORMAT
  value: {{ (index . 0).Values.log.format }}
- name: {{ $prefix }}LOG_LEVEL
  value: {{ (index . 0).Values.log.level | quote }}
{{- end -}}

{{- define "flexfeed.sourceEnv" -}}
{{- $source := .Values.source -}}
{{- $address := $source.listenAddress -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: FLEXFEED_CONFIG
  value: /etc/flexfeed/config/{{ if $source.existingConfigSecret }}source{{ else }}$(POD_NAME){{ end }}.toml
- name: FLEXFEED_DATA
  value: /data
- name: FLEXFEED_LISTEN
  value: {{ printf "%s:4433" $address | quote }}
- name: FLEXFEED_HTTP
  value: {{ include "flexfeed.listen" (list $address $source.httpPort $source.httpLocal) | quote }}
- name: FLEXFEED_HOLDER_NAME
  value: $(POD_NAME)
{{ include "flexfeed.logVariables" (list . "FLEXFEED_") }}
{{- if eq .Values.database.mode "sqlite" }}
- name: DATABASE_URL
  value: sqlite:///data/flexfeed.db
{{- end }}
{{- include "flexfeed.databaseVariables" . }}
{{- if include "flexfeed.consoleInside" . }}
- name: FLEXFEED_CONSOLE
  value: {{ include "flexfeed.listen" (list $address .Values.console.httpPort .Values.console.httpLocal) | quote }}
{{- include "flexfeed.consoleVariables" . }}
{{- end }}
{{- $relays := "" }}
{{- if and (gt (int $source.replicas) 1) (include "flexfeed.sidecar" .) (eq $source.service.type "NodePort") (not .Values.relay.addresses) }}
{{- if not (include "flexfeed.relaysSaid" .) }}
# Receivers reach the relay alongside this source only at its own node.
- name: HOST_IP
  valueFrom:
    fieldRef:
      fieldPath: status.hostIP
{{- $port := required "receivers have to know the relay's port: set source.service.relayNodePort, or relay.addresses" $source.service.relayNodePort }}
{{- $relays = include "flexfeed.withFurtherRelays" (list . (printf "$(HOST_IP):%d=127.0.0.1:2268" (int $port))) }}
{{- end }}
{{- else if $source.existingConfigSecret }}
{{- $relays = include "flexfeed.relays" (list . 0) }}
{{- end }}
{{- if $source.existingConfigSecret }}
{{- /* A settings file of your own does not contain these values: variables override it. */}}
- name: FLEXFEED_MULTICAST_TTL
  value: {{ include "flexfeed.multicastTtl" . | quote }}
{{- with include "flexfeed.publicAddress" . }}
- name: FLEXFEED_PUBLIC_ADDRESS
  value: {{ . | quote }}
{{- end }}
{{- if $source.tls.existingSecret }}
- name: FLEXFEED_CERT
  value: /etc/flexfeed/tls/tls.crt
- name: FLEXFEED_KEY
  value: /etc/flexfeed/tls/tls.key
{{- end }}
{{- if $source.signingKey.existingSecret }}
- name: FLEXFEED_SIGNING_KEY
  value: /etc/flexfeed/signing/signing.key
{{- end }}
{{- with $source.tls.nextPin }}
- name: FLEXFEED_NEXT_PIN
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- with $relays }}
- name: FLEXFEED_AMT_RELAY
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Variables of the relay, alongside the source or on nodes. */}}
{{- define "flexfeed.relayEnv" -}}
{{- $relay := .Values.relay -}}
{{- $nodes := eq $relay.mode "daemonset" -}}
- name: FLEXFEED_RELAY_LISTEN
  value: ":2268"
{{- if and $nodes $relay.capture }}
- name: FLEXFEED_RELAY_CAPTURE
  value: "true"
{{- else }}
- name: FLEXFEED_RELAY_UDP_PORTS
  value: {{ include "flexfeed.text" $relay.udpPorts | quote }}
{{- end }}
{{- if $nodes }}
{{- with $relay.nativeInterface }}
- name: FLEXFEED_RELAY_NATIVE_INTERFACE
  value: {{ . | quote }}
{{- end }}
{{- end }}
- name: FLEXFEED_RELAY_HTTP
  value: {{ include "flexfeed.listen" (list "" $relay.httpPort $relay.httpLocal) | quote }}
{{ include "flexfeed.logVariables" (list . "FLEXFEED_RELAY_") }}
{{- include "flexfeed.variables" (list "FLEXFEED_RELAY_" $relay.settings) }}
{{- end -}}

{{- define "flexfeed.consoleEnv" -}}
- name: FLEXFEED_CONSOLE_LISTEN
  value: {{ printf ":%d" (int .Values.console.httpPort) | quote }}
{{ include "flexfeed.logVariables" (list . "FLEXFEED_CONSOLE_") }}
{{- include "flexfeed.databaseVariables" . }}
{{- include "flexfeed.consoleVariables" . }}
{{- include "flexfeed.variables" (list "FLEXFEED_CONSOLE_" .Values.console.settings) }}
{{- end -}}

{{- define "flexfeed.receiverEnv" -}}
{{- $receiver := .Values.receiver -}}
{{- $each := eq $receiver.kind "DaemonSet" -}}
- name: WHERE
  valueFrom:
    fieldRef:
      fieldPath: {{ ternary "spec.nodeName" "metadata.name" $each }}
- name: FLEXFEED_NAME
  value: {{ if and $receiver.name $each }}{{ printf "%s-$(WHERE)" $receiver.name | quote }}{{ else }}{{ default "$(WHERE)" $receiver.name | quote }}{{ end }}
- name: FLEXFEED_LINK_FILE
  value: /etc/flexfeed/link/link
- name: FLEXFEED_DATA
  value: /data
- name: FLEXFEED_HTTP
  value: {{ include "flexfeed.listen" (list "" $receiver.httpPort $receiver.httpLocal) | quote }}
{{ include "flexfeed.logVariables" (list . "FLEXFEED_") }}
{{- include "flexfeed.variables" (list "FLEXFEED_" $receiver.settings) }}
{{- end -}}

{{- define "flexfeed.postgresEnv" -}}
- name: POSTGRES_USER
  value: flexfeed
- name: POSTGRES_DB
  value: flexfeed
- name: POSTGRES_PASSWORD_FILE
  value: /etc/flexfeed/database/password
# A folder of its own: the volume's root may hold lost+found.
- name: PGDATA
  value: /var/lib/postgresql/data/pgdata
{{- end -}}
