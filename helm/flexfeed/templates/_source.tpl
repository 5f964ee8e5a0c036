{{/* The source's settings. */}}

{{- define "flexfeed.sourceName" -}}
{{ include "flexfeed.fullname" . }}-source
{{- end -}}

{{/* Whether there is a relay in the source's pod. */}}
{{- define "flexfeed.sidecar" -}}
{{- if and .Values.source.enabled .Values.relay.enabled (eq .Values.relay.mode "sidecar") }}yes{{ end -}}
{{- end -}}

{{/* Whether each replica has a Service of its own: a common one would route receivers to standbys.
A node port leads to the node's own replica. */}}
{{- define "flexfeed.serviceEach" -}}
{{- if and (gt (int .Values.source.replicas) 1) (ne .Values.source.service.type "NodePort") }}yes{{ end -}}
{{- end -}}

{{/* HOST of HOST:PORT, [IPV6]:PORT or an IPv6 address without brackets, to which they are
added. */}}
{{- define "flexfeed.host" -}}
{{- if regexMatch "^\\[.*\\]" . -}}
{{- regexFind "^\\[.*\\]" . -}}
{{- else if gt (len (splitList ":" .)) 2 -}}
[{{ . }}]
{{- else -}}
{{- index (splitList ":" .) 0 -}}
{{- end -}}
{{- end -}}

{{/* PORT of HOST:PORT, or nothing. */}}
{{- define "flexfeed.port" -}}
{{- if regexMatch "^(\\[.*\\]|[^:]*):[0-9]+$" . -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}
{{- end -}}

{{/* The public address with its port. */}}
{{- define "flexfeed.publicAddress" -}}
{{- $given := .Values.publicAddress -}}
{{- if $given -}}
{{- $service := .Values.source.service -}}
{{- $port := include "flexfeed.port" $given -}}
{{- if not $port -}}
{{- $port = $service.port -}}
{{- if eq $service.type "NodePort" -}}
{{- $port = required "publicAddress has no port: with source.service.type NodePort set source.service.nodePort, or write publicAddress as HOST:PORT" $service.nodePort -}}
{{- end -}}
{{- end -}}
{{ include "flexfeed.host" $given }}:{{ int $port }}
{{- end -}}
{{- end -}}

{{/* Whether source.settings.amt_relay is the complete list of announced relays: it contains the one
in the source's pod, or is empty. */}}
{{- define "flexfeed.relaysSaid" -}}
{{- $settings := default dict .Values.source.settings -}}
{{- if hasKey $settings "amt_relay" -}}
{{- $text := include "flexfeed.text" $settings.amt_relay -}}
{{- $said := regexMatch "^$|=(127\\.|localhost|\\[::1\\])" $text -}}
{{- range prepend (default list .Values.relay.addresses) (default "" .Values.publicAddress) -}}
{{- $host := include "flexfeed.host" . -}}
{{- if and $host (contains $host $text) }}{{ $said = true }}{{ end -}}
{{- end -}}
{{- if $said }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* The relays of this release, followed by those of source.settings.amt_relay:
(list $ "those of this release") */}}
{{- define "flexfeed.withFurtherRelays" -}}
{{- $settings := default dict (index . 0).Values.source.settings -}}
{{ index . 1 }}{{ if hasKey $settings "amt_relay" }},{{ include "flexfeed.text" $settings.amt_relay }}{{ end -}}
{{- end -}}

{{/* The relays of this release that the replica announces: (list $ number) */}}
{{- define "flexfeed.relays" -}}
{{- $top := index . 0 -}}
{{- $number := index . 1 -}}
{{- $values := $top.Values -}}
{{- $addresses := default list $values.relay.addresses -}}
{{- $service := $values.source.service -}}
{{- $inside := "127.0.0.1:2268" -}}
{{- if not $values.relay.enabled -}}
{{- else if eq $values.relay.mode "daemonset" -}}
{{- join "|" $addresses -}}
{{- else if $addresses -}}
{{- $address := index $addresses 0 -}}
{{- if gt (len $addresses) $number }}{{ $address = index $addresses $number }}{{ end -}}
{{ $address }}={{ $inside }}
{{- else if and $values.publicAddress (not (and (eq $service.type "NodePort") (gt (int $values.source.replicas) 1))) -}}
{{- $port := $service.relayPort -}}
{{- if eq $service.type "NodePort" -}}
{{- $port = required "the relay's announced port is unknown: with source.service.type NodePort set source.service.relayNodePort, or relay.addresses" $service.relayNodePort -}}
{{- end -}}
{{ include "flexfeed.host" $values.publicAddress }}:{{ int $port }}={{ $inside }}
{{- end -}}
{{- end -}}

{{- define "flexfeed.multicastTtl" -}}
{{- $given := .Values.source.multicastTtl -}}
{{- if not (or (kindIs "invalid" $given) (eq (toString $given) "")) -}}
{{- include "flexfeed.text" $given -}}
{{- else if or .Values.source.hostNetwork (and .Values.relay.enabled (eq .Values.relay.mode "daemonset")) -}}
64
{{- else -}}
0
{{- end -}}
{{- end -}}

{{/* A TOML value: booleans as they are, lists of strings, anything else in quotes, which the source
accepts for numbers as well. JSON strings are TOML strings. */}}
{{- define "flexfeed.toml" -}}
{{- if kindIs "bool" . -}}
{{ . }}
{{- else if kindIs "slice" . -}}
[{{- range $i, $part := . }}{{ if $i }}, {{ end }}{{ include "flexfeed.text" $part | toJson }}{{ end -}}]
{{- else -}}
{{ include "flexfeed.text" . | toJson }}
{{- end -}}
{{- end -}}

{{/* The settings file of a replica: (list $ number) */}}
{{- define "flexfeed.sourceToml" -}}
{{- $top := index . 0 -}}
{{- $values := $top.Values -}}
{{- $source := $values.source -}}
{{- $keys := dict "multicast_ttl" (include "flexfeed.multicastTtl" $top) -}}
{{- with include "flexfeed.publicAddress" $top }}{{ $_ := set $keys "public_address" . }}{{ end -}}
{{- with $source.contact }}{{ $_ := set $keys "contact" . }}{{ end -}}
{{- with $source.retention }}{{ $_ := set $keys "retention" . }}{{ end -}}
{{- with $source.retentionAge }}{{ $_ := set $keys "retention_age" . }}{{ end -}}
{{- with $source.tls.nextPin }}{{ $_ := set $keys "next_pin" . }}{{ end -}}
{{- if $source.tls.existingSecret }}
{{- $_ := set $keys "cert" "/etc/flexfeed/tls/tls.crt" -}}
{{- $_ := set $keys "key" "/etc/flexfeed/tls/tls.key" -}}
{{- end -}}
{{- if $source.signingKey.existingSecret }}
{{- $_ := set $keys "signing_key" "/etc/flexfeed/signing/signing.key" -}}
{{- end -}}
{{- range $key, $value := $source.settings }}{{ $_ := set $keys $key $value }}{{ end -}}
{{- if not (include "flexfeed.relaysSaid" $top) -}}
{{- with include "flexfeed.relays" . }}{{ $_ := set $keys "amt_relay" (include "flexfeed.withFurtherRelays" (list $top .)) }}{{ end -}}
{{- end -}}
{{- range $key := keys $keys | sortAlpha -}}
{{ $key }} = {{ include "flexfeed.toml" (index $keys $key) }}
{{ end -}}
{{- range $channel := $source.channels }}
[[channel]]
name = {{ $channel.name | toJson }}
{{- with $channel.groups }}
groups = {{ include "flexfeed.toml" . }}
{{- end }}
{{- with $channel.rate }}
rate = {{ include "flexfeed.toml" . }}
{{- end }}
{{- with $channel.keep }}
keep = {{ include "flexfeed.toml" . }}
{{- end }}
{{- if $channel.private }}
private = true
{{- end }}
{{- with $channel.packetAuthentication }}
packet_authentication = {{ . | toJson }}
{{- end }}
{{- if hasKey $channel "fec" }}
{{- /* off without quotation marks is false */}}
fec = {{ ternary $channel.fec "off" (kindIs "string" $channel.fec) | toJson }}
{{- end }}
{{- with $channel.deadline }}
deadline = {{ include "flexfeed.toml" . }}
{{- end }}
{{ range $feed := $channel.feeds }}
[[channel.feed]]
url = {{ $feed.url | toJson }}
{{- with $feed.interval }}
interval = {{ include "flexfeed.toml" . }}
{{- end }}
{{- with $feed.minInterval }}
min_interval = {{ include "flexfeed.toml" . }}
{{- end }}
{{- with $feed.maxInterval }}
max_interval = {{ include "flexfeed.toml" . }}
{{- end }}
{{- if $feed.local }}
local = true
{{- end }}
{{ end -}}
{{- end -}}
{{- end -}}
