package fieldmap

import (
	"slices"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
)

// maxSampleAttributes is the default limit, for an Exporter that config.Load did not make.
const maxSampleAttributes = 32

// canonical maps the meanings of Inspektor Gadget (IG) fields to the attributes that the semantic conventions define for them.
var canonical = map[string]string{
	processComm:       "thread.name",
	processPID:        "process.pid",
	"proc.tid":        "thread.id",
	"proc.parent.pid": "process.parent_pid",
	"proc.creds.uid":  "process.user.id",
	"proc.uid":        "process.user.id", // in this project's struct profiles_process
}

// IG's enrichment adds these fields to rows of known containers.
const (
	idNamespace = iota
	idPod
	idContainer
	idNode
	idOwnerKind
	idOwnerName
	idLabels
	idRuntimeContainer
	idContainerID
	idImageName
	idImageDigest
	idRuntimeName
	numIdentities
)

// identities pairs these fields with the resource attributes that they become. Fields without an attribute only serve to
// derive other attributes.
var identities = [numIdentities]struct{ field, key string }{
	idNamespace:        {"k8s.namespace", keyNamespace},
	idPod:              {"k8s.podName", keyPod},
	idContainer:        {"k8s.containerName", keyK8sContainer},
	idNode:             {"k8s.node", keyNode},
	idOwnerKind:        {"k8s.owner.kind", ""},
	idOwnerName:        {"k8s.owner.name", ""},
	idLabels:           {"k8s.podLabels", ""},
	idRuntimeContainer: {"runtime.containerName", keyContainerName},
	idContainerID:      {"runtime.containerId", keyContainerID},
	idImageName:        {"runtime.containerImageName", keyImageName},
	idImageDigest:      {"runtime.containerImageDigest", keyImageDigests},
	idRuntimeName:      {"runtime.runtimeName", keyRuntimeName},
}

// identity finds the fields that IG's enrichment adds.
func (c *compiler) identity() {
	p := c.plan
	for i, id := range identities {
		if acc, ok := c.byName[id.field]; ok && c.identityOf(acc) == i {
			p.identity[i] = newReader(c.ds, acc)
		}
	}
	// Settings for the field also apply to the attribute. With CompatNames, the two names are two attributes of a sample.
	if !c.o.Exporter.CompatNames {
		for _, id := range identities {
			if pl, ok := p.placement[id.field]; ok && id.key != "" {
				if _, ok := p.placement[id.key]; !ok {
					p.placement[id.key] = pl
				}
			}
		}
	}
	p.containerID = p.identity[idContainerID]
	for _, i := range []int{idNamespace, idPod, idContainer, idRuntimeContainer} {
		if r := p.identity[i]; r.acc != nil {
			p.identityFields = append(p.identityFields, r)
		}
	}
}

// identityOf returns a field's index in identities, or -1. A member of the gadget's own event struct can have the same name.
func (c *compiler) identityOf(acc datasource.FieldAccessor) int {
	if !c.ours || acc.Type() != api.Kind_String || datasource.FieldFlagStaticMember.In(acc.Flags()) {
		return -1
	}
	return slices.IndexFunc(identities[:], func(id struct{ field, key string }) bool { return id.field == acc.FullName() })
}

// attributes decides which fields become attributes, and sets their keys and places. It applies the defaults first, then the
// image's annotations, then the settings.
func (c *compiler) attributes() {
	p := c.plan
	used := map[string]string{}
	for _, acc := range c.fields {
		key, where := c.attribute(acc)
		if where == nowhere {
			continue
		}
		a := attribute{key: key, read: newReader(c.ds, acc)}
		if !a.read.single() {
			c.warnf("the field %q is left out of the attributes: it is an array or a struct, and an attribute holds one value", acc.FullName())
			continue
		}
		if first, ok := used[key]; ok {
			c.warnf("the field %q is left out: the field %q already sets the attribute %q", acc.FullName(), first, key)
			continue
		}
		_, fixed := p.fixed[key]
		switch {
		case fixed:
			c.debugf("the field %q is left out: the exporter's resource has the attribute %q", acc.FullName(), key)
			continue
		case where == onResource || where == onBoth:
			p.resourceAttrs = append(p.resourceAttrs, a)
			p.resourceFields = append(p.resourceFields, a.read)
			if where == onBoth && len(p.sampleAttrs) < p.maxSample {
				p.sampleAttrs = append(p.sampleAttrs, a)
			}
		case len(p.sampleAttrs) >= p.maxSample:
			c.warnf("the field %q is left out: a sample has at most %d attributes (max_sample_attributes)", acc.FullName(), p.maxSample)
			continue
		default:
			p.sampleAttrs = append(p.sampleAttrs, a)
			p.sampleKeyFields = append(p.sampleKeyFields, a.read)
		}
		used[key] = acc.FullName()
	}
	for key, where := range p.placement {
		if _, field := used[key]; (where == onSample || where == onBoth) && !field {
			p.movedToSample = true
		}
	}
}

// attribute returns the key and the place of a field's attribute. The place is nowhere if the field has no attribute.
func (c *compiler) attribute(acc datasource.FieldAccessor) (key string, where place) {
	name := acc.FullName()
	meaning := c.meaning(acc)
	own, known := canonical[meaning]
	i := c.identityOf(acc)
	identity := i >= 0
	if identity {
		own = identities[i].key
		known = own != ""
	}
	key = firstOf(own, name)
	if c.o.Exporter.CompatNames {
		key = name
	}
	if meaning == processComm {
		where = onSample
	}

	annotations := acc.Annotations()
	for _, q := range []struct {
		annotation string
		where      place
	}{{annSampleAttribute, onSample}, {annResourceAttribute, onResource}} {
		a := parseAnswer(annotations, q.annotation)
		switch {
		case !a.set:
		case !a.yes:
			if where == q.where {
				where = nowhere
			}
			if identity && known && q.where == onResource {
				c.leaveOut(own)
			}
		default:
			wanted := key
			if a.name != "" {
				wanted = a.name
			}
			if a.name != "" || !known {
				if err := checkKey(wanted); err != nil {
					c.warnf("the annotation %s of the field %q is ignored: attribute %q: %v", q.annotation, name, clipName(wanted), err)
					continue
				}
			}
			key, where = wanted, q.where
		}
	}

	if identity && known && (where == nowhere || key == own) {
		// Plan.derive creates this attribute and puts it where the settings say. By default, that is only the resource.
		return key, nowhere
	}
	// The settings can refer to an attribute by its key, its key in the conventions, its field, or the field's meaning.
	for _, k := range []string{key, own, name, meaning} {
		if pl, ok := c.plan.placement[k]; ok && k != "" {
			if where == nowhere && pl != nowhere {
				key = k
				if c.o.Exporter.CompatNames && k == own {
					key = name
				}
			}
			where = pl
			break
		}
	}
	return key, where
}

// leaveOut drops an attribute, unless the settings say where it goes.
func (c *compiler) leaveOut(key string) {
	if _, ok := c.plan.placement[key]; !ok {
		c.plan.placement[key] = nowhere
	}
}
